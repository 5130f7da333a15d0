"""`cfg.keys`: keys of the config that no engine reads, and those that look like one it does."""

from __future__ import annotations

from typing import Any

from checks.cfg.case import Case, cfg_check
from checks.draft import KEY
from checks.finding import Finding, Verdict
from checks.similar import similar

# What engines read of an EAGLE-3 draft's config.
_READ = """
architectures draft_vocab_size target_hidden_size num_aux_hidden_states eagle_config num_hidden_layers fc_norm
use_aux_norm norm_output norm_before_fc bias num_attention_heads num_key_value_heads head_dim rope_theta rope_scaling
rope_parameters rms_norm_eps intermediate_size intermediate_size_mlp hidden_act hidden_size tie_word_embeddings
max_position_embeddings vocab_size model_type torch_dtype dtype quantization_config attention_bias mlp_bias
q_lora_rank kv_lora_rank qk_rope_head_dim qk_nope_head_dim v_head_dim norm_before_residual
eagle_aux_hidden_state_layer_ids truncated_vocab_size partial_rotary_factor sliding_window use_sliding_window
ptd_token_id pard_token logit_scale
"""
READ = frozenset(_READ.split())
# What trainers and transformers write beside it.
_WRITTEN = """
attention_dropout bos_token_id eos_token_id pad_token_id sep_token_id initializer_range max_window_layers use_cache
transformers_version pretraining_tp target_model_type decoder_sparse_step auto_map layer_types _name_or_path
name_or_path id2label label2id problem_type return_dict output_attentions output_hidden_states
chunk_size_feed_forward
is_encoder_decoder is_decoder cross_attention_hidden_size add_cross_attention tie_encoder_decoder pruned_heads
torchscript use_bfloat16 tf_legacy_loss prefix task_specific_params tokenizer_class finetuning_task
rope_interleave first_k_dense_replace moe_intermediate_size n_routed_experts n_shared_experts num_experts_per_tok
n_group topk_group topk_method scoring_func routed_scaling_factor norm_topk_prob aux_loss_alpha seq_aux moe_layer_freq
num_nextn_predict_layers ep_size has_no_defaults_at_init speculators_config speculators_model_type
speculators_version transformer_layer_config embed_requires_grad attn_implementation _attn_implementation
_attn_implementation_autoset mask_token_id target_layer_count num_experts unsloth_version parallel_drafting mask_hidden
"""
WRITTEN = frozenset(_WRITTEN.split())
# Keys without which the draft is another: a slip in one of these is worth a warning.
# Of the ids cfg.aux_ids says it.
_TELLING = tuple(sorted(READ - {"bias", "dtype", "torch_dtype", "model_type", "hidden_act", KEY}))
_NEAR = 0.88
# A config has a few dozen keys; to look for what each of a million resembles would take an hour.
_COMPARED = 1000


@cfg_check("cfg.keys")
def keys(case: Case) -> Finding | None:
    """No key of the config is a slip of one that engines read, and none stands twice.

    Engines pass over keys they do not know, so `num_key_value_head` for `num_key_value_heads` changes the draft without
    a word. Of a key that stands twice they take the last, and a reader may see the first.

    WARN: a key that stands twice in one object; an unknown key that looks like one engines read, which is itself
    absent. INFO: unknown keys; whatever they are to say reaches no engine.

    What to do: correct the slip; leave one of the two.
    """
    own = case.draft.config
    unknown = sorted(key for key in own if key not in READ and key not in WRITTEN)
    slips = {}
    for key in unknown[:_COMPARED]:
        near = similar(key.lower().replace("-", "_")[:80], _TELLING, _NEAR)
        if near and near not in own:
            slips[key] = near
    twice = case.draft.doubled_keys
    facts: dict[str, Any] = {"unknown": unknown[:20], "slips": slips, "twice": list(twice[:20])}
    said = [f"{key!r:.60} stands twice in one object: engines read the last" for key in twice[:5]]
    said += [f"{key!r:.60} looks like {near}, which is absent: engines pass over it" for key, near in slips.items()]
    if said:
        more = f"; and {len(said) - 8} more" if said[8:] else ""
        return case.say(Verdict.WARN, "; ".join(said[:8]) + more, facts)
    if unknown:
        shown = ", ".join(f"{key!r:.40}" for key in unknown[:5]) + (
            f" and {len(unknown) - 5} more" if unknown[5:] else ""
        )
        return case.say(Verdict.INFO, f"not known to be read by an engine: {shown}", facts)
    return case.say(Verdict.PASS, "every key is known", facts)
