"""Pages are free or held, and no page is two things at once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sparrow_lab.errors import UserError
from sparrow_lab.rollout.paged.pool import PagePool, check_fits


class Holders(RuleBasedStateMachine):
    """Users that take, share and release as they like; a multiset is the model."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(12)
        self.users: list[list[int]] = []

    @rule(count=st.integers(0, 14))
    def take(self, count: int) -> None:
        free = self.pool.free
        if count > free:
            with pytest.raises(RuntimeError, match=f"{count} pages wanted, {free} of 12"):
                self.pool.take(count)
            return
        taken = self.pool.take(count)
        assert len(set(taken)) == count
        assert not {page for user in self.users for page in user} & set(taken)
        self.users.append(taken)

    @precondition(lambda self: self.users)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        pages = data.draw(st.sampled_from(self.users))
        self.pool.share(pages)
        self.users.append(list(pages))

    @precondition(lambda self: self.users)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        pages = self.users.pop(data.draw(st.integers(0, len(self.users) - 1)))
        left = {page for user in self.users for page in user}
        assert set(self.pool.release(pages)) == set(pages) - left

    @invariant()
    def counts(self) -> None:
        held = {page for user in self.users for page in user}
        assert self.pool.held == len(held)
        assert self.pool.free == 12 - len(held)


TestHolders = Holders.TestCase
TestHolders.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


def test_a_free_page_is_neither_shared_nor_given_back() -> None:
    pool = PagePool(3)
    (page,) = pool.take(1)
    pool.release([page])
    with pytest.raises(RuntimeError, match=f"page {page} is free"):
        pool.release([page])
    with pytest.raises(RuntimeError, match=f"page {page} is free"):
        pool.share([page])


@given(
    prompt=st.integers(1, 40),
    new=st.integers(1, 40),
    shared=st.booleans(),
    size=st.integers(1, 16),
    pages=st.integers(1, 30),
)
def test_a_request_is_refused_when_its_tokens_have_no_place(
    prompt: int, new: int, shared: bool, size: int, pages: int
) -> None:
    places = {i // size for i in range(prompt + max(new - 1, 1))}
    need = len(places) + (1 if shared and prompt % size else 0)
    if need <= pages:
        check_fits(prompt, new, shared, size, pages, 1 << 20)
        return
    with pytest.raises(UserError, match=f"need {need} pages of {size} tokens.*holds {pages} "):
        check_fits(prompt, new, shared, size, pages, 1 << 20)
