"""Parameters of the primitives whose parameters are read by name, of every supported JAX."""

from __future__ import annotations

PARAMETERS: dict[str, tuple[frozenset[str], ...]] = {
    name: tuple(frozenset(names.split()) for names in sets)
    for name, sets in {
        "scan": (
            "reverse length jaxpr num_consts num_carry unroll",  # 0.10.2
            "reverse length jaxpr ft_in ft_out unroll",  # 0.12.0
        ),
        "while": ("body_jaxpr body_nconsts cond_jaxpr cond_nconsts",),
        "cond": ("branches", "branches branches_platforms"),
        "custom_linear_solve": ("const_lengths jaxprs",),
        "composite": ("name attributes version jaxpr", "name attributes version call_jaxpr"),
        "reshape": ("new_sizes dimensions sharding",),
        "transpose": ("permutation",),
        "squeeze": ("dimensions",),
        "broadcast_in_dim": ("shape broadcast_dimensions sharding",),
        "slice": ("start_indices limit_indices strides",),
        "concatenate": ("dimension",),
        "stack": ("axis",),
        "unstack": ("axis",),
        "split": ("sizes axis",),
        "pad": ("padding_config",),
        "rev": ("dimensions",),
        "iota": ("dtype shape dimension sharding",),
        "dynamic_slice": ("slice_sizes",),
        "dynamic_update_slice": ("",),
        "gather": (
            "dimension_numbers slice_sizes unique_indices indices_are_sorted mode fill_value",
        ),
        "scatter-add": (
            "dimension_numbers indices_are_sorted unique_indices mode update_jaxpr update_consts",
        ),
        "dot_general": ("dimension_numbers precision preferred_element_type out_sharding",),
        "conv_general_dilated": (
            "window_strides padding lhs_dilation rhs_dilation dimension_numbers "
            "feature_group_count batch_group_count precision preferred_element_type out_sharding",
        ),
        "reduce_sum": ("axes out_sharding", "axes"),
        "reduce_max": ("axes out_sharding", "axes"),
        "reduce_prod": ("axes out_sharding", "axes"),
        "argmax": ("axes index_dtype",),
        "cumsum": ("axis reverse",),
        "sort": ("dimension is_stable num_keys",),
        "top_k": ("k axis", "k axis is_stable"),
        "approx_top_k": (
            "k reduction_dimension recall_target is_max_k reduction_input_size_override "
            "aggregate_to_topk",
        ),
        "reduce_window_max": (
            "window_dimensions window_strides padding base_dilation window_dilation",
        ),
        "select_and_scatter_add": ("select_prim window_dimensions window_strides padding",),
        "random_bits": ("bit_width shape",),
    }.items()
}
