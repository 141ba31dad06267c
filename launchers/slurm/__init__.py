"""SLURM: job arrays whose tasks claim work, and gate jobs between the phases of a run."""
