"""The paper's numbers: Tables 1, 3 and 4, in per cent. Those of Table 2 are in `neural.model.PRESETS`."""

Published = tuple[float, float | None]  # a value and the half-width of its 95 % interval, if the paper gives one

BASELINE = "Baseline"
LANGUAGES = {"en_us": "en_US", "pt_br": "pt_BR"}

TABLE_1_BASELINE = {"top1": 8.14, "oov_rate": 18.08}
TABLE_1: dict[float, dict[str, Published]] = {
    1.0: {"top1": (0.19, 0.21), "oov_rate": (-1.33, 0.75)},
    1000.0: {"top1": (0.11, 0.24), "oov_rate": (-1.06, 0.66)},
    5000.0: {"top1": (-0.08, 0.26), "oov_rate": (-0.78, 0.93)},
}
TABLE_3: dict[str, dict[str, Published]] = {
    BASELINE: {"en_us": (10.03, None), "pt_br": (8.55, None)},
    "A_W_e": {"en_us": (10.52, 0.03), "pt_br": (9.66, 0.02)},
    "A_W_i": {"en_us": (10.47, 0.02), "pt_br": (9.67, 0.02)},
    "A_W_m": {"en_us": (10.27, 0.03), "pt_br": (9.40, 0.02)},
    "A_W_r": {"en_us": (10.49, 0.03), "pt_br": (9.65, 0.02)},
}
TABLE_4: dict[str, dict[str, Published]] = {
    BASELINE: {"en_us": (10.03, None)},
    "A_P_e": {"en_us": (10.49, 0.03)},
    "A_P_i": {"en_us": (10.46, 0.03)},
    "A_P_m": {"en_us": (10.48, 0.04)},
    "A_P_r": {"en_us": (10.53, 0.03)},
}
