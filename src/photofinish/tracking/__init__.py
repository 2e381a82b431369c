"""MLflow: the results' mirror. Nothing outside this folder imports it, and only `worker` and `sync` start it."""
