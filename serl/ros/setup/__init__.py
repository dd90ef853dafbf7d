"""`serl setup`: guided commissioning of an arm, step by step."""
