"""The tool `search`: the best documents of a corpus for a query, by BM25."""

import re
from collections.abc import Sequence

import numpy as np

NOTHING_FOUND = "No document has any of these words."


class Search:
    """Searches documents by BM25 in the form of Lucene (k1 = 1.5, b = 0.75), as the library bm25s computes it.

    Words are runs of letters and digits in any language, without case. Of documents with the same score the earlier one
    comes first. `search` returns at most `results` documents, and of each at most `characters` characters.

    Raises `ModuleNotFoundError` without the extra `search`.
    """

    def __init__(self, documents: Sequence[str], *, results: int, characters: int) -> None:
        import bm25s

        self.documents = documents
        self.results = results
        self.characters = characters
        self.index = bm25s.BM25(method="lucene", k1=1.5, b=0.75)
        self.index.index([words(document) for document in documents], show_progress=False)

    def search(self, query: str) -> str:
        """Search a collection of documents, and read the best of them.

        Args:
            query: The words to search for.
        """
        known = [word for word in words(query) if word in self.index.vocab_dict]
        if not known:
            return NOTHING_FOUND
        scores = self.index.get_scores(known)
        best: list[int] = np.argsort(-scores, kind="stable")[: self.results].tolist()
        matching = [n for n in best if scores[n] > 0]
        return "\n\n".join(f"[{n + 1}] {self._shown(self.documents[n])}" for n in matching)

    def _shown(self, document: str) -> str:
        return document if len(document) <= self.characters else f"{document[: self.characters]} ..."


def words(text: str) -> list[str]:
    """Return the words of a text, in lower case."""
    return re.findall(r"\w+", text.casefold())
