"""The decode kernels, fed token by token, against the training kernels over the whole sequence."""

from __future__ import annotations

import pytest
import torch

from sparrow_kernels.landmarks import Landmark, landmark_rows, write_kv
from sparrow_kernels.page_choice import page_choice
from sparrow_kernels.paged_decode import paged_decode
from sparrow_kernels.sparse_attention import PageBits, PageRule, choose_pages, sparse_attention
from tests.kernels.devices import DEVICES, dtypes_of

FIRST, LAST = 1, 2


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("landmark", "page_size", "heads"), [("mean", 4, (4, 2)), ("minmax", 8, (2, 1))]
)
def test_decode_and_training_attention_agree_token_by_token(
    device: str, landmark: Landmark, page_size: int, heads: tuple[int, int]
) -> None:
    """Whole numbers make scores exact and many equal: the pages are the same to the last tie."""
    (H, K), D, S = heads, 16, page_size
    T, prompt, keep = (1000, 100, 20) if device == "cuda" else (44, 9, 4)
    P = -(-T // S)
    length_N = torch.arange(T + 1)
    keep_N = torch.minimum(-(-length_N // S), torch.where(length_N < T - 10, keep, keep + 1))
    rule = PageRule(S, keep_N, FIRST, LAST, landmark)
    noise = torch.Generator().manual_seed(0)
    for dtype in dtypes_of(device):

        def whole(n: int, dtype: torch.dtype = dtype) -> torch.Tensor:
            return torch.randn((T, n, D), generator=noise).round().to(device, dtype)

        q, k, v = whole(H), whole(K), whole(K)
        pages = choose_pages(q, k, [0, T], [prompt], rule, backend="triton")
        trained = sparse_attention(q, k, v, pages, [0, T], D**-0.5, backend="triton")
        # pages lie in the pool in any order, with rows between them that belong to nobody
        table = torch.randperm(2 * P, generator=noise)[None, :P].to(device)
        pools = [torch.zeros((2 * P, K, S, D), dtype=dtype, device=device) for _ in range(2)]
        marks = torch.zeros((2 * P, K, landmark_rows(landmark), D), dtype=dtype, device=device)
        starts = torch.tensor([0, prompt], device=device)
        length = torch.tensor([prompt], device=device)
        write_kv(
            *pools, marks, k[:prompt], v[:prompt], starts, length, table, landmark,
            backend="triton",
        )  # fmt: skip
        chosen = torch.zeros((K, T, P), dtype=torch.bool, device=device)
        decoded = torch.zeros_like(trained)
        for t in range(prompt, T):
            length = length + 1
            new = slice(t, t + 1)
            write_kv(*pools, marks, k[new], v[new], None, length, table, landmark, backend="triton")
            keep_B = keep_N[t + 1 : t + 2].to(device)
            q_BKGD = q[new].view(1, K, H // K, D)
            width = int(keep_N.max())
            page_BKW = page_choice(
                q_BKGD, marks, table, length, keep_B, S, FIRST, LAST, width, backend="triton"
            )
            out = paged_decode(
                q_BKGD, *pools, table, page_BKW, length, D**-0.5, backend="triton"
            ).out_BKGD
            decoded[t] = out.view(H, D)
            for head in range(K):
                kept = page_BKW[0, head].long()
                chosen[head, t, kept[kept < P]] = True
        assert int(chosen[:, -1].sum()) < K * P
        told = PageBits.pack(chosen, S).words_KWL
        assert torch.equal(pages.words_KWL[..., prompt:], told[..., prompt:])
        close = 1e-5 if dtype == torch.float32 else 0.05
        torch.testing.assert_close(decoded[prompt:], trained[prompt:], atol=close, rtol=close)
