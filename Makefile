# A fresh clone needs nothing first: every target builds .venv once and reuses it.

TASK ?= drawer --preset practice --demos 1 --steps 12000
SEED ?= 1
WORKERS ?= 4
# Tried in this order; the first from 3.11 to 3.13 (what the ROS 2 wheels exist for) is used.
PYTHON ?= python3 python3.13 python3.12 python3.11

PIP := .venv/bin/python -m pip install -qq --disable-pip-version-check -c .venv/constraints.txt
# A sourced ROS 2 install is used as it is, with the numpy that its messages were compiled against.
SOURCED := import os; os.environ["ROS_DISTRO"]; import numpy, rclpy; print(f"numpy=={numpy.__version__}")

.ONESHELL:
.SHELLFLAGS := -ec
.PHONY: train test check docs bench soak lowest bridges audit clean

train: .venv/ready
	.venv/bin/serl train $(TASK) --seed $(SEED)

# Tests wait for each other's processes: two for each core keep it busy, and may miss a deadline.
test: .venv/ready
	rm -rf .pytest_cache
	.venv/bin/pytest -n $(WORKERS) --dist loadgroup && exit || [ $$? = 1 ] || exit
	.venv/bin/python .ci/failed.py > .pytest_cache/failed.txt
	echo "FAILED beside others; once more, alone:"; cat .pytest_cache/failed.txt
	.venv/bin/pytest @.pytest_cache/failed.txt

check: .venv/ready-docs
	.venv/bin/ruff format --check
	.venv/bin/ruff check
	.venv/bin/mypy
	.venv/bin/codespell
	.venv/bin/python .ci/docstrings.py
	.venv/bin/python .ci/pages.py
	$(MAKE) --no-print-directory docs

docs: .venv/ready-docs
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict --quiet
	@echo "open build/site/index.html"

# All are run, also where one fails; those that failed are named at the end.
bench: .venv/ready-bench
	failed=
	for script in update pixels stream guard resume console bystanders "columns --transitions=100000" "training --ablations" habits person; do
	  set -- $$script
	  .venv/bin/python tests/bench/bench_$$1.py $${2:-} || failed="$$failed $$1"
	done
	if [ "$$failed" ]; then echo "failed:$$failed" >&2; exit 1; fi

soak: .venv/ready-bench
	.venv/bin/pytest -m slow
	SERL_PROCESSES=1 .venv/bin/pytest tests/test_tutorials.py tests/test_howto.py
	SERL_ATTACK_S=60 .venv/bin/pytest -k forged_measurements tests/faults

# The lowest dependencies, in an environment of their own: some gigabytes, as torch brings CUDA.
LOWEST := tests/agents/test_sac.py tests/training/test_learner.py tests/report/test_film.py tests/system/test_video.py tests/cli/test_list.py tests/test_api.py tests/test_api_data.py
lowest:
	python3.11 -m venv .venv-lowest
	.venv-lowest/bin/python -m pip install -qq -c constraints-lowest.txt -e '.[console,data]' pytest hypothesis
	.venv-lowest/bin/serl list > /dev/null
	.venv-lowest/bin/python -m pytest -p no:cacheprovider $(LOWEST)

# Exports read by the programs that they are for, in an environment of their own: LeRobot asks for
# other versions than serl, and with all that it names it has many gigabytes.
bridges: .venv/ready .venv-bridges/ready
	.venv/bin/pytest -m bridges tests/datasets/test_readers.py

.venv-bridges/ready: Makefile
	@echo "installing LeRobot and robomimic into .venv-bridges"
	.venv/bin/python -m venv .venv-bridges
	pip=".venv-bridges/bin/python -m pip install -qq --disable-pip-version-check"
	$$pip torch==2.13.0
	$$pip accelerate datasets draccus einops h5py huggingface_hub jsonlines matplotlib safetensors six termcolor tqdm "av<16" "psutil>=6"
	$$pip --no-deps lerobot==0.4.4 robomimic==0.3.0 torchvision==0.22.1 deepdiff
	touch $@

audit: .venv/ready-audit
	.venv/bin/python .ci/audit.py

clean:
	rm -rf .venv .venv-lowest .venv-bridges build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis

.venv/ready: pyproject.toml constraints.txt
	@for python in $(PYTHON) none; do
	  "$$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null && break
	done
	if [ "$$python" = none ]; then
	  echo 'serl needs Python 3.11, 3.12 or 3.13; none of "$(PYTHON)" is (set PYTHON=/path/to/python3)' >&2
	  exit 1
	fi
	echo "installing serl and what it needs into .venv; the first time takes minutes"
	if numpy=$$("$$python" -c '$(SOURCED)' 2>/dev/null); then
	  "$$python" -m venv --system-site-packages .venv
	  echo "$$numpy" > .venv/constraints.txt
	  $(PIP) -e '.[console,dev]'
	else
	  "$$python" -m venv .venv
	  cp constraints.txt .venv/constraints.txt
	  $(PIP) -e '.[console,dev,ros]'
	fi
	touch $@

.venv/ready-bench: .venv/ready
	@echo "adding the packages that only make bench and make soak need"
	$(PIP) -e '.[bench,wandb]'
	touch $@

.venv/ready-docs: .venv/ready
	@echo "adding the packages that only make docs needs"
	$(PIP) -e '.[docs]'
	touch $@

.venv/ready-audit: .venv/ready
	@echo "adding the packages that only make audit needs"
	$(PIP) -e '.[audit]'
	touch $@
