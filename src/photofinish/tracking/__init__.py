"""MLflow's mirror of the results. A stage uses `client.Tracker`."""

import os

# MLflow reads these variables at import. By default, it retries a missing server for four minutes.
for _name, _value in {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "GIT_PYTHON_REFRESH": "quiet",
}.items():
    os.environ.setdefault(_name, _value)
