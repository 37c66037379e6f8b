"""A policy's notes on its forecasts as text: how far they were from the outcome.

The notes are NAME_count, NAME_mape, NAME_pinball and NAME_quantile (`hetsim_policies.prediction.durations` makes them),
where NAME is forecast (of a load, in devices) or duration (of jobs, in seconds), and forecast_fallback: the part of
them that was made by the predictor's fall-back.
"""

from collections.abc import Mapping
from typing import Any

from hetsim.results.formatting import seconds, share
from hetsim.results.one_run.plans import number

NAMES = {"forecast": "load forecast", "duration": "durations"}


def forecasts(notes: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Title and text by kind, as in `MAPE 23 % (1,234 predictions)`."""
    texts = []
    for name, title in NAMES.items():
        count, mape, loss = (number(notes, f"{name}_{key}") for key in ("count", "mape", "pinball"))
        if not count > 0:
            continue
        parts = [f"MAPE {share(mape)}"] if mape >= 0 else []
        quantile = number(notes, f"{name}_quantile")
        at_quantile = f" at {quantile:g}" if quantile >= 0 and quantile != 0.5 else ""
        parts.append(f"pinball loss{at_quantile} {seconds(loss) if name == 'duration' else f'{loss:.3g} devices'}")
        text = f"{', '.join(parts)} ({count:,.0f} predictions)"
        fallback = number(notes, f"{name}_fallback")
        if fallback > 0:
            text += f", {share(fallback)} by the fall-back"
        texts.append((title, text))
    return texts
