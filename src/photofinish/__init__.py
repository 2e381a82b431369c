"""photofinish: is a GPU worth it for this training job, and is the model the same?"""

__version__ = "0.1.0"
