"""What a run leaves on disk: records, histories, networks, scores."""
