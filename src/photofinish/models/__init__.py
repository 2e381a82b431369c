"""Networks: the registry, torchvision's, and published weights."""
