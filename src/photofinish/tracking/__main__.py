"""`python -m photofinish.tracking` is the process that talks to MLflow."""

from __future__ import annotations

from photofinish.processes import quick_imports

if __name__ == "__main__":
    with quick_imports():
        from photofinish.tracking.worker import main
    main()
