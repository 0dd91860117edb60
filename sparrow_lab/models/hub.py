"""Files of a model on the Hugging Face hub, or a clear word on why there are none."""

from __future__ import annotations

import socket
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies

from sparrow_lab.errors import UserError, nearest
from sparrow_lab.models.tiny import TINY


def split_revision(name: str) -> tuple[str, str | None]:
    """`owner/name@revision` as its two parts; without a revision the hub's newest is taken."""
    base, _, revision = name.partition("@")
    return base, revision or None


def hub_file(name: str, file: str) -> Path:
    """Take a file from the hub's cache, or download it; its path on this disk.

    Raises:
        UserError: no such model or file, no access, or no network and not in the cache.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    where = f"model.name {name}"
    base, revision = split_revision(name)
    hint = nearest(base.split("/")[-1], TINY)
    try:
        return Path(hf_hub_download(base, file, revision=revision, local_files_only=_unreachable()))
    except GatedRepoError:
        raise UserError("the hub wants you to accept its terms and log in first", where) from None
    except RevisionNotFoundError:
        raise UserError(f"the model on the hub has no revision '{revision}'", where) from None
    except RepositoryNotFoundError:
        raise UserError(f"no such folder, and no such model on the hub{hint}", where) from None
    except LocalEntryNotFoundError:
        raise UserError(
            f"no such folder, and the hub cannot be reached{hint}; fetch it on a machine with a "
            "network, then name the folder",
            where,
        ) from None
    except EntryNotFoundError:
        raise UserError(f"the model on the hub has no {file}", where) from None
    except HFValidationError:
        raise UserError(f"no such folder, and not a name that the hub knows{hint}", where) from None
    except OSError as error:
        raise UserError(f"the hub did not answer: {error}", where) from None


def _unreachable() -> bool:
    """True when the hub's name cannot even be looked up: asking would retry for half a minute."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return True
    host = urlsplit(constants.ENDPOINT).hostname
    if host is None or getproxies():
        return False
    try:
        socket.getaddrinfo(host, 443)
    except OSError:
        return True
    return False
