"""How Hypothesis runs here: no clock decides, and a failure can be repeated by its printed blob."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "untimed",
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("untimed")
