"""photofinish: is a GPU worth it for this training job, how much faster, why, and is the model the same?"""

__version__ = "0.1.0"
