"""`replay.accuracy`: the draft run over cached states, what it is worth there and under other wirings."""

from __future__ import annotations

from collections.abc import Iterator

from checks.catalog import check
from checks.evidence import Evidence, Need
from checks.finding import Finding

ID = "replay.accuracy"


@check(ID, needs=(Need.DRAFT_WEIGHTS, Need.CACHE))
def accuracy(evidence: Evidence) -> Iterator[Finding]:
    """The draft is run over the cached states as in training, several steps deep, and its proposals are compared with
    what the target says: what it could reach if the engine fed it exactly this. Where other captured states suit it
    better, it was trained on those; take their ids, or the cache it was really trained on.

    What is run. Grouped or latent attention (MLA), one layer or several, rope plain or scaled (linear, llama3, yarn;
    yarn for MLA), and every norm a draft may have: of each slot or of all before `fc`, of the residual, of the output.
    A layer after the first has one norm before its attention, and that one is used. As `hidden_norm` only SGLang reads
    it, as `input_layernorm` only vLLM does: under the other name an engine serves another draft than was trained.

    What is measured. Teacher forced: step j at anchor t reads the embedding of token t+1+j and proposes token t+2+j;
    keys of step 0 are causal, those of later steps belong to their own anchor. A hit agrees with the target's greedy
    token (from the cached final state, normed where it is not yet), or with the text where no final state or no
    target weights are at hand. `marginal` accuracy is over all anchors, `conditional` given that all steps before hit.
    The expected accept length walks each text as the engine does (t += accepted + 1), bonus token included, with a 95 %
    interval over texts, or over blocks of 32 anchors when there are fewer than 8 texts. The number of steps is
    `speculative-num-steps`, or 5. With a loss mask only places where training looked count; without one all do, prompts
    included, and the finding says so.

    How it decides. An accept length alone proves nothing: the right wiring on hard text is below a wrong one on easy
    text. So with a capture of all states the same anchors are replayed under other wirings: neighbours of every slot,
    the embedding first, known defaults, other orders, and on from the best of them. Differences are paired, and their
    intervals hold for all tried wirings together.

    - another wiring gains, certainly and at least 0.02 tokens a round: FAIL, with its states and the ids for them.
    - none does, and none could by 0.3 tokens: PASS. What the engine feeds now is replayed as well, and the difference
      is what a fix is worth.
    - the first step is certainly right less often than the most frequent token: FAIL. The draft, its token map, or the
      cache is broken or of another target.
    - a draft of latent attention does certainly better turned otherwise than its config says, with the base 10000 that
      a trainer put in the place of `rope_theta`, or with halves for neighbours (`rope_interleave`): FAIL, with the key.
    - states of other tokens would do as well as its own: WARN. The draft draws nothing from these states.
    - no capture of all states: INFO, the numbers are given and no wiring is proven.
    - a draft of another kind, one that would take more than half of the free memory, or too few anchors: UNKNOWN.
    """
    # Here, because only a run that has a draft's weights and a cache needs what runs a draft.
    from checks.replay.judged import judged

    yield from judged(evidence)
