def compute_score(data_sources, solution_strs, ground_truths, extra_infos):
    return [float(truth in text) for text, truth in zip(solution_strs, ground_truths, strict=True)]
