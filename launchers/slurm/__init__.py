"""SLURM: job arrays whose tasks claim work, and scheduler jobs between the phases of a run."""
