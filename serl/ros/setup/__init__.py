"""`serl setup`: the first day with an arm, step by step."""
