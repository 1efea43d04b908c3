"""Upload a model folder to the Hugging Face Hub."""

from pathlib import Path

from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalTokenNotFoundError

from outdo.utils.errors import OutdoError


def push(folder: Path, name: str, *, private: bool, message: str) -> str:
    """Upload a model folder to `owner/name`, which is created if it is missing; return its address.

    `private` counts for a new repository only. Files that an interrupted call has uploaded are not sent again.

    Raises: OutdoError if the Hub cannot be reached or refuses; the folder stays as it is.
    """
    hub = HfApi()
    try:
        address = hub.create_repo(name, private=private, exist_ok=True)
        hub.upload_folder(repo_id=name, folder_path=folder, commit_message=message)
    except (HfHubHTTPError, HFValidationError, LocalTokenNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise OutdoError(f"{name}: not uploaded: {reason}; the model is in {folder}") from error
    return str(address)
