"""MLflow, which mirrors the results. No other package imports it; a stage talks to it through `client.Tracker`."""
