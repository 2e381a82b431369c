"""Networks: built in, torchvision's, timm's and custom, and published weights."""
