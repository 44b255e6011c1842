"""Measurements: ``python -m eval.NAME --config=configs/NAME.py --workdir=FOLDER``."""
