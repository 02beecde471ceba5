"""Drives the API with the `openai` package, as a user's program would.

Usage: openai_client.py BASE_URL MODEL

Prints one line for each thing shown and ends with 0, or fails with the assertion. Deliberately
uses no knowledge of the server beyond OpenAI's API; what is ours is read from `oasiskv`, a field
that the client keeps without knowing it.
"""

import sys

import openai


def chat_whole(client, model):
    answer = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Say hello in five words."}],
        max_tokens=16,
        temperature=0,
    )
    assert answer.object == "chat.completion"
    choice = answer.choices[0]
    assert choice.message.role == "assistant" and choice.message.content
    assert choice.finish_reason in ("stop", "length")
    usage = answer.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens_details.cached_tokens >= 0
    assert answer.system_fingerprint
    return choice.message.content


def chat_streamed(client, model, expected):
    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Say hello in five words."}],
        max_tokens=16,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    text, finish, usage = "", None, None
    for chunk in stream:
        assert chunk.object == "chat.completion.chunk"
        if chunk.choices:
            text += chunk.choices[0].delta.content or ""
            finish = chunk.choices[0].finish_reason or finish
        usage = chunk.usage or usage
    assert text == expected, (text, expected)
    assert finish in ("stop", "length")
    assert usage.completion_tokens >= 1


def completions(client, model):
    parameters = dict(model=model, prompt="The capital of France is", max_tokens=5, temperature=0)
    whole = client.completions.create(**parameters)
    assert whole.object == "text_completion"
    assert "Paris" in whole.choices[0].text, whole.choices[0].text
    pieces = client.completions.create(**parameters, stream=True)
    text = "".join(piece.choices[0].text for piece in pieces if piece.choices)
    assert text == whole.choices[0].text


def seeds(client, model):
    def draw(**more):
        return client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": "Tell me something."}],
            max_tokens=16,
            temperature=1,
            **more,
        )

    first = draw()
    again = draw(seed=first.model_extra["oasiskv"]["seed"])
    assert again.choices[0].message.content == first.choices[0].message.content


def models(client, model):
    assert [listed.id for listed in client.models.list()] == [model]
    assert client.models.retrieve(model).id == model


def errors(client, model):
    hello = [{"role": "user", "content": "Hi!"}]

    def fails(kind, status, code, **parameters):
        try:
            client.chat.completions.create(**{"model": model, "messages": hello, **parameters})
        except openai.APIStatusError as error:
            assert type(error) is kind, error
            assert (error.status_code, error.code) == (status, code), error
            assert error.message and error.type
            return error
        raise AssertionError(f"no error for {parameters}")

    bad = openai.BadRequestError
    assert fails(bad, 400, "invalid_value", temperature=9).param == "temperature"
    fails(bad, 400, "unsupported_parameter", n=2)
    fails(bad, 400, "unknown_parameter", extra_body={"temprature": 1})
    long = [{"role": "user", "content": "word " * 9000}]
    fails(bad, 400, "context_length_exceeded", messages=long)
    fails(openai.NotFoundError, 404, "model_not_found", model="gpt-9")
    try:
        client.embeddings.create(model=model, input="x")
    except openai.NotFoundError:
        return
    raise AssertionError("embeddings are not refused")


def leave_early(client, model):
    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Count to one thousand."}],
        max_tokens=2000,
        stream=True,
    )
    next(iter(stream))
    stream.close()


def main():
    base_url, model = sys.argv[1:]
    client = openai.OpenAI(base_url=base_url, api_key="unused", max_retries=0, timeout=60)
    text = chat_whole(client, model)
    print("chat, whole")
    chat_streamed(client, model, text)
    print("chat, streamed")
    completions(client, model)
    print("completions")
    seeds(client, model)
    print("seeds")
    models(client, model)
    print("models")
    errors(client, model)
    print("errors")
    leave_early(client, model)
    print("leaving early")
    print("openai", openai.__version__, "is served")


if __name__ == "__main__":
    main()
