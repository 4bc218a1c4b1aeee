import pytest

from cape_stream.adapters.kafka import KafkaSettings

BOOTSTRAP = "localhost:9092"
SECRET = "correct horse"  # what must never be shown


def test_settings_keep_secrets_out_of_their_text() -> None:
    settings = KafkaSettings(bootstrap_servers=BOOTSTRAP, extra={"sasl.password": SECRET})

    assert settings.connection()["sasl.password"] == SECRET
    assert SECRET not in repr(settings)
    assert SECRET not in str(settings)


def test_extra_settings_win_in_every_client() -> None:
    settings = KafkaSettings(bootstrap_servers=BOOTSTRAP, extra={"client.id": "mine"})

    assert settings.connection()["client.id"] == "mine"
    assert settings.consumer()["client.id"] == "mine"
    assert settings.producer()["client.id"] == "mine"


def test_give_up_after_ms_is_below_half_the_session_timeout_by_default() -> None:
    settings = KafkaSettings(bootstrap_servers=BOOTSTRAP, session_timeout_ms=10_000)

    assert settings.give_up_after_ms == 4_000


@pytest.mark.parametrize("message_timeout_ms", [0, -1, 3_001])
def test_settings_refuse_a_message_timeout_that_outlives_the_lease(message_timeout_ms: int) -> None:
    with pytest.raises(
        ValueError, match=f"half of session_timeout_ms .3000., got {message_timeout_ms}"
    ):
        KafkaSettings(
            bootstrap_servers=BOOTSTRAP,
            session_timeout_ms=6_000,
            message_timeout_ms=message_timeout_ms,
        )


def test_settings_refuse_a_session_too_short_for_any_broker() -> None:
    with pytest.raises(ValueError, match="session_timeout_ms must be >= 1000, got 999"):
        KafkaSettings(bootstrap_servers=BOOTSTRAP, session_timeout_ms=999)
