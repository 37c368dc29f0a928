"""The pocket model's tokenizer: the family's pre-tokenisation, byte pair merging by rank, and the
256 special tokens, which follow the ordinary ones."""
import base64
import functools
import pathlib

import regex

SPECIAL_COUNT = 256
PATTERN = "|".join([
    r"[\p{Han}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?:(?i:'s|'t|'re|'ve|'m|'ll|'d))?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?:(?i:'s|'t|'re|'ve|'m|'ll|'d))?",
    r"\p{N}{1,3}",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"\s*[\r\n]+",
    r"\s+(?!\S)",
    r"\s+",
])


def special_names():
    """Offset from the first special id -> (text, the `special` flag). The rest is reserved."""
    names = {0: "[BOS]", 1: "[EOS]", 2: "<|im_end|>", 3: "<|im_user|>", 4: "<|im_assistant|>",
             6: "<|start_header_id|>", 7: "<|end_header_id|>", 9: "[EOT]", 10: "<|im_system|>",
             11: "<|tool_calls_section_begin|>", 12: "<|tool_calls_section_end|>",
             13: "<|tool_call_begin|>", 14: "<|tool_call_argument_begin|>",
             15: "<|tool_call_end|>", 17: "<|im_middle|>", 18: "<|media_begin|>",
             19: "<|media_content|>", 20: "<|media_end|>", 21: "<|media_pad|>", 22: "<think>",
             23: "</think>", 254: "[UNK]", 255: "[PAD]"}
    visible = {11, 12, 13, 14, 15, 22, 23}
    return {offset: (name, offset not in visible) for offset, name in names.items()}


class BytePairs:
    """Merging by rank, the plain way: the lowest-ranked neighbouring pair joins first."""

    def __init__(self, ranks):
        self.ranks = ranks

    def merge(self, raw):
        parts = [raw[i:i + 1] for i in range(len(raw))]
        while len(parts) > 1:
            best, at = None, -1
            for i in range(len(parts) - 1):
                rank = self.ranks.get(parts[i] + parts[i + 1])
                if rank is not None and (best is None or rank < best):
                    best, at = rank, i
            if best is None:
                break
            parts[at:at + 2] = [parts[at] + parts[at + 1]]
        return [self.ranks[p] for p in parts]


class Tokenizer:
    def __init__(self, folder=None):
        folder = pathlib.Path(folder or pathlib.Path(__file__).resolve().parents[1] / "model")
        ranks = {}
        for line in (folder / "tiktoken.model").read_text(encoding="ascii").split("\n"):
            if line:
                token, rank = line.split()
                ranks[base64.b64decode(token)] = int(rank)
        self.ordinary = len(ranks)
        self.size = self.ordinary + SPECIAL_COUNT
        self.pairs = BytePairs(ranks)
        self.split = regex.compile(PATTERN, regex.V1)
        self.piece = functools.lru_cache(maxsize=1 << 18)(self._piece)
        self.bytes_of = {rank: token for token, rank in ranks.items()}
        self.special = {}
        names = special_names()
        for offset in range(SPECIAL_COUNT):
            text = names[offset][0] if offset in names else f"<|reserved_token_{self.ordinary + offset}|>"
            self.special[text] = self.ordinary + offset
        self.special_text = {i: text for text, i in self.special.items()}

    def _piece(self, piece):
        raw = piece.encode("utf-8")
        rank = self.pairs.ranks.get(raw)
        return (rank,) if rank is not None else tuple(self.pairs.merge(raw))

    def encode(self, text):
        """Ordinary text only: special strings inside it stay text."""
        ids = []
        for piece in self.split.findall(text):
            ids.extend(self.piece(piece))
        return ids

    def decode(self, ids, specials=True):
        out = bytearray()
        for i in ids:
            if i in self.bytes_of:
                out += self.bytes_of[i]
            elif specials:
                out += self.special_text[i].encode()
        return out.decode("utf-8", errors="replace")
