"""The harness of Rosetta Attention: fixtures, answers, a judge and a stopwatch. It imports no port."""

__version__ = "0.1.0"
