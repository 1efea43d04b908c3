"""Models of the Hugging Face Hub: which of their files are used, and their download."""

from collections.abc import Sequence
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from outdo.models.gguf_folder import converted
from outdo.models.inspect_folder import ModelFacts, inspect_folder
from outdo.utils.errors import ModelError
from outdo.utils.hub_names import is_local
from outdo.utils.text import first_line

TOKENIZER_FILES = ("*.json", "*.jinja", "*.txt", "*.model")
SAFETENSORS = "*.safetensors"
MODEL_FILES = ("*.json", SAFETENSORS)  # never pickle, never Python


def downloaded(facts: ModelFacts) -> ModelFacts:
    """Return what is in the files of a language model; if it is on the Hub and not on this machine, download it first.

    Of a GGUF file a folder is made. Raises `ModelError` if the model cannot be downloaded or made.
    """
    if facts.folder is not None and (facts.parameters is not None or is_local(facts.name)):
        return facts
    files_of(facts, (*TOKENIZER_FILES, *MODEL_FILES))
    return inspect_folder(facts.adapter or facts.name)


def files_of(facts: ModelFacts, patterns: Sequence[str]) -> Path:
    """Return the folder of a local model; download a hub model, or convert a GGUF file, unless it is there already."""
    if facts.dequantised:
        return converted(Path(facts.name).expanduser(), weights=SAFETENSORS in patterns)
    if is_local(facts.name):
        assert facts.folder is not None
        return facts.folder
    try:
        name, _, revision = facts.name.partition("@")
        download = snapshot_download(name, revision=revision or None, allow_patterns=list(patterns), etag_timeout=10)
        return Path(download)
    except GatedRepoError as error:
        accept = f"accept its conditions at https://huggingface.co/{name}, and log in with `hf auth login`"
        raise ModelError(f"{facts.name}: this model of the Hub is gated; {accept}") from error
    except RevisionNotFoundError as error:
        raise ModelError(f"{facts.name}: the model {name} of the Hub has no revision {revision}") from error
    except RepositoryNotFoundError as error:
        private = "or it is private: check the name, and log in with `hf auth login`"
        raise ModelError(f"{facts.name}: the Hub has no model {name}, {private}") from error
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise ModelError(
            f"{facts.name} is no folder on this machine and cannot be downloaded from the hub: {first_line(error)}"
        ) from error
