"""Coverage-guided fuzzing of the decoders with atheris, where it is installed.

    python -m tests.support.coverage_fuzz CORPUS [-max_total_time=SECONDS] [options of libFuzzer]

The first byte of an input chooses the decoder. An exception other than the declared one ends it.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from random import Random

import atheris

with atheris.instrument_imports(include=["serl"]):
    from ..test_fuzz import accepts, make_decoders
    from .mutations import mutated


def main() -> None:
    """Write the valid samples into the corpus and fuzz; never return."""
    corpus = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        decoders = make_decoders(Path(folder))
        names = sorted(decoders)
        for number, name in enumerate(names):
            for index, sample in enumerate(decoders[name].samples):
                (corpus / f"{name}-{index}").write_bytes(bytes([number]) + sample)

        def attack(data: bytes) -> None:
            if data:
                name = names[data[0] % len(names)]
                accepts(name, decoders[name], data[1:])

        def mutate(data: bytes, max_size: int, seed: int) -> bytes:
            """Mutate an input as the other fuzz tests do, with corrected checksums."""
            rng = Random(seed)
            if not data:
                return bytes([rng.randrange(256)])
            reseal = decoders[names[data[0] % len(names)]].reseal
            mutant = mutated(data[1:], rng)
            return data[:1] + (reseal(mutant) if reseal else mutant)[: max_size - 1]

        atheris.Setup(sys.argv, attack, custom_mutator=mutate)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
