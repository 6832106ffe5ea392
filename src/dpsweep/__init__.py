"""dpsweep: find and explain good hyperparameters for differentially private deep transfer learning."""

__version__ = "0.1.0"

# Raised when the same trial would come out differently: stored trials of older versions are then
# trained again. A refactoring that leaves every result bit for bit the same does not raise it.
TRAINER_VERSION = 4
