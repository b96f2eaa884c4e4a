"""Small experiments that show why attention is the way it is. Each is a module with a main and a `--help`:

python -m rosetta_experiments.layer_costs
python -m rosetta_experiments.score_variance
python -m rosetta_experiments.decode
python -m rosetta_experiments.paging
"""
