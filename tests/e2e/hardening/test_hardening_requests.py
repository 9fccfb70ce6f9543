"""Requests that could be read in two ways, are too large, or are no requests at all."""

import gzip

import pytest
from tests.e2e.hardening.conftest import ORIGIN, Door

MEMORY = b'{"content": "tea at five"}'
A_MIB = 1024 * 1024


class TestBodies:
    @pytest.mark.parametrize("length", [256 * 1024 + 1, 5 * 10**9, 10**18])
    def test_a_length_over_the_routes_limit_is_refused_before_a_byte_of_it_comes(self, door: Door, length: int) -> None:
        with door.wire() as wire:
            answer = wire.say(door.head("POST", "/v1/memories", json=True, length=length)).hear()
            assert (answer.status, answer.problem["code"]) == (413, "payload_too_large")
            assert wire.is_closed(within_s=10)

    def test_a_body_without_a_length_is_counted_as_it_comes(self, door: Door) -> None:
        chunk = b"%x\r\n" % 65536 + b" " * 65536 + b"\r\n"
        with door.wire() as wire:
            wire.say(door.head("POST", "/v1/memories", "Transfer-Encoding: chunked", json=True), *[chunk] * 5)
            answer = wire.hear()
            assert (answer.status, answer.problem["code"]) == (413, "payload_too_large")
            assert wire.is_closed(within_s=10)

    def test_what_follows_a_refused_body_is_not_taken_for_a_request(self, door: Door) -> None:
        smuggled = door.head("GET", "/v1/whoami")
        body = smuggled.encode() + b" " * (300 * 1024)
        with door.wire() as wire:
            answer = wire.say(door.head("POST", "/v1/memories", json=True, length=len(body)), body).hear()
            assert answer.status == 413
            assert b"tenant_name" not in answer.body
            assert wire.is_closed(within_s=10)

    @pytest.mark.parametrize("target", ["/v1/memories", "/v1/nowhere", "/admin/v1/tenants"])
    def test_no_body_is_read_for_whoever_has_no_key(self, door: Door, target: str) -> None:
        with door.wire() as wire:
            answer = wire.say(door.head("POST", target, key="mp_live_x", json=True, length=40 * A_MIB)).hear()
            assert answer.status in (401, 404)
            assert wire.is_closed(within_s=10)

    def test_every_route_has_its_own_limit(self, door: Door) -> None:
        body = b'{"query": "' + b"x" * (300 * 1024) + b'"}'
        assert door.ask("POST", "/v1/memories/search", body=body).status == 413
        assert door.ask("POST", "/v1/memories/batch", body=body).status == 422  # read, and no batch

    def test_a_client_that_waits_for_permission_is_told_before_it_sends(self, door: Door) -> None:
        with door.wire() as wire:
            head = door.head("POST", "/v1/memories", "Expect: 100-continue", json=True, length=10 * A_MIB)
            assert wire.say(head).hear().status == 413
        with door.wire() as wire:
            head = door.head("POST", "/v1/memories", "Expect: 100-continue", json=True, length=len(MEMORY))
            answer = wire.say(head).hear()
            assert answer.status == 100
            assert wire.say(MEMORY).hear().status in (200, 201)

    @pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd", "GZIP", "gzip, gzip", "x"])
    def test_compressed_bodies_are_never_opened(self, door: Door, coding: str) -> None:
        bomb = gzip.compress(b"\0" * A_MIB)
        answer = door.ask("POST", "/v1/memories", f"Content-Encoding: {coding}", body=bomb)
        assert (answer.status, answer.problem["code"]) == (415, "unsupported_media_type")
        assert door.ask("POST", "/v1/memories", "Content-Encoding: identity", body=MEMORY).status in (200, 201)

    @pytest.mark.parametrize(
        "content_type",
        [
            "text/plain",
            "application/x-www-form-urlencoded",
            "multipart/form-data; boundary=x",
            "application/x-msgpack",
            "application/json; charset=latin-1",
            "",
            "\xff\xfe",
        ],
    )
    def test_a_body_has_to_say_that_it_is_json(self, door: Door, content_type: str) -> None:
        answer = door.ask("POST", "/v1/memories", f"Content-Type: {content_type}", body=MEMORY)
        assert (answer.status, answer.problem["code"]) == (415, "unsupported_media_type")
        with door.wire() as wire:
            untold = wire.say(door.head("POST", "/v1/memories", length=len(MEMORY)), MEMORY).hear()
        assert untold.status == 415

    @pytest.mark.parametrize(
        "content_type", ["APPLICATION/JSON", 'application/json;charset="UTF-8"', "application/merge-patch+json"]
    )
    def test_json_may_be_called_by_any_of_its_names(self, door: Door, content_type: str) -> None:
        answer = door.ask("POST", "/v1/memories", f"Content-Type: {content_type}", body=MEMORY)
        assert answer.status in (200, 201)


class TestJson:
    @pytest.mark.parametrize(
        ("body", "status", "pointer"),
        [
            (b'{"content": "a", "content": "b"}', 422, "/content"),
            (b'{"content": "a", "cont\\u0065nt": "b"}', 422, "/content"),
            (b'{"content": "a", "metadata": {"k": [0, {"x": 1, "x": 1}]}}', 422, "/metadata/k/1/x"),
            (b'{"content": "a\\u0000b"}', 422, "/content"),
            (b'{"content": "\\ud800"}', 422, "/content"),
            (b'{"content": "\xed\xa0\x80"}', 422, "/content"),
            (b'{"content": "a", "metadata": {"n": ' + b"9" * 5000 + b"}}", 422, "/metadata/*"),
            (b'{"content": "a", "metadata": {"n": 1e99999}}', 422, "/metadata/*"),
            (b'{"content": "a", "importance": ' + b"9" * 400 + b"}", 422, "/importance"),
            (b'{"content": "a", "metadata": ' + b'{"a":' * 65 + b"1" + b"}" * 66, 422, "/metadata"),
            (b'{"content": "a", "metadata": {' + b'"k":1,' * 9000 + b'"z":1}}', 422, "/metadata/k"),
            (b'{"content": "a", "n\\n\\u001b[31m": 1}', 422, "/n\n\x1b[31m"),
            (b"", 422, ""),
            (b"null", 422, ""),
            (b'{"content": "a"} {}', 400, None),
            (b'{"content": "a", "metadata": ' + b'{"a":' * 20_000 + b"1" + b"}" * 20_001, 400, None),
            (b'{"content": "\xff"}', 400, None),
            (b'\xef\xbb\xbf{"content": "a"}', 400, None),
            ('{"content": "a"}'.encode("utf-16"), 400, None),
            (b'{"content": "a\nb"}', 400, None),
        ],
    )
    def test_what_no_store_can_keep_or_two_readers_read_alike_is_refused_by_name(
        self, door: Door, body: bytes, status: int, pointer: str | None
    ) -> None:
        answer = door.ask("POST", "/v1/memories", body=body)
        assert answer.status == status, answer
        assert [fault["pointer"] for fault in answer.problem.get("errors", [])][:1] == [pointer] * (pointer is not None)

    def test_a_long_batch_is_looked_through_to_its_end(self, door: Door) -> None:
        item = b'{"content": "' + b"x" * 30_000 + b'"},'
        body = b'{"memories": [' + item * 20 + b'{"content": "a", "user_id": "b", "user_id": "c"}]}'
        answer = door.ask("POST", "/v1/memories/batch", body=body)
        assert (answer.status, answer.problem["errors"][0]["pointer"]) == (422, "/memories/20/user_id")

    @pytest.mark.parametrize(
        "filters",
        [
            b'{"user_id": "a", "user_id": "b"}',
            b'{"NOT":' * 17 + b'{"user_id":"a"}' + b"}" * 17,
            b'{"NOT":' * 20_000 + b'{"user_id":"a"}' + b"}" * 20_000,
            b'{"OR":[' * 2_000 + b'{"user_id":"a"}' + b"]}" * 2_000,
            b'{"OR":[' + b'{"user_id":"a"},' * 2_000 + b'{"user_id":"a"}]}',
            b'{"user_id": {"in": [' + b'"a",' * 2_000 + b'"a"]}}',
            b'{"metadata.' + b"a." * 5_000 + b'a": 1}',
        ],
    )
    def test_no_filter_is_too_deep_or_too_wide_to_be_refused(self, door: Door, filters: bytes) -> None:
        answer = door.ask("POST", "/v1/memories/search", body=b'{"query": "a", "filters": ' + filters + b"}")
        assert answer.status in (400, 422)
        assert answer.problem["detail"]

    def test_ids_are_opaque_and_come_back_as_they_were(self, door: Door) -> None:
        body = b'{"content": "odd owner", "user_id": "a\\n\\u001b[31m\\u202e/../%00"}'
        assert door.ask("POST", "/v1/memories", body=body).status in (200, 201)
        found = door.ask("GET", "/v1/memories?user_id=a%0A%1B%5B31m%E2%80%AE/../%2500")
        assert (found.status, found.body.count(b'"odd owner"')) == (200, 1)


class TestHeaders:
    @pytest.mark.parametrize(
        ("lines", "status"),
        [
            (["Authorization: Bearer {key}", "Authorization: Bearer {key}"], 400),
            (["Authorization: Bearer {key}", "X-API-Key: other"], 401),
            (["Authorization: Bearer x", "X-API-Key: {key}"], 401),
            (["Authorization: Bearer {key}", "X-API-Key: {key}"], 200),
            (["X-API-Key: {key}", "X-API-Key: {key}"], 400),
            (["Authorization: Bearer"], 401),
            (["Authorization: Bearer {key},{key}"], 401),
            (["Authorization: Bearer {key} {key}"], 401),
            (["Authorization: Bearer \xe4\xff"], 401),
            (["Authorization: Bearer " + "a" * 50_000], 401),
            (["Authorization: {key}"], 401),
            (["Authorization: Basic {key}"], 401),
        ],
    )
    def test_a_key_is_given_once_or_not_at_all(self, door: Door, lines: list[str], status: int) -> None:
        headers = [line.replace("{key}", door.tenant.key) for line in lines]
        assert door.ask("GET", "/v1/whoami", *headers, key=None).status == status

    @pytest.mark.parametrize(
        ("header", "name"),
        [
            ("Idempotency-Key: b", "Idempotency-Key"),
            ("Content-Type: text/plain", "Content-Type"),
            ("Host: other.example", "Host"),
        ],
    )
    def test_no_header_that_counts_comes_twice(self, door: Door, header: str, name: str) -> None:
        head = door.head("POST", "/v1/memories", "Idempotency-Key: a", header, json=True, length=len(MEMORY))
        with door.wire() as wire:
            answer = wire.say(head, MEMORY).hear()
        assert (answer.status, answer.problem["errors"][0]["pointer"]) == (400, name)

    @pytest.mark.parametrize("lines", [["X: " + "a" * 200_000], [f"X-{n}: a" for n in range(200)]])
    def test_headers_have_room_and_no_more(self, door: Door, lines: list[str]) -> None:
        with door.wire() as wire:
            assert wire.say(door.head("GET", "/v1/whoami", *lines)).hear().status == 431
            assert wire.is_closed(within_s=10)

    @pytest.mark.parametrize(
        ("given", "taken"), [("order-1234.A_b", True), ("short", False), ("a" * 65, False), ("a\tforged b", False)]
    )
    def test_a_request_id_is_taken_over_only_if_it_is_plain(self, door: Door, given: str, taken: bool) -> None:
        answer = door.ask("GET", "/v1/whoami", f"X-Request-Id: {given}")
        assert (answer.headers["x-request-id"] == given) is taken

    def test_every_answer_says_how_it_may_be_used_and_not_by_what_it_was_made(self, door: Door) -> None:
        for target in ("/v1/whoami", "/v1/nowhere", "//", "/docs", "/openapi.json", "/healthz"):
            headers = door.ask("GET", target).headers
            assert headers["x-content-type-options"] == "nosniff", target
            assert headers["cache-control"] == "no-store", target
            assert headers["server"] == "memplane", target
            assert headers["ratelimit-policy"], target
        for page in ("/docs", "/docs/problems"):
            headers = door.ask("GET", page).headers
            assert "frame-ancestors 'none'" in headers["content-security-policy"]
            assert headers["referrer-policy"] == "no-referrer"

    def test_pages_of_named_origins_alone_may_call(self, door: Door) -> None:
        asked = ["Access-Control-Request-Method: POST", "Access-Control-Request-Headers: authorization,content-type"]
        allowed = door.ask("OPTIONS", "/v1/memories", f"Origin: {ORIGIN}", *asked, key=None)
        assert (allowed.status, allowed.headers["access-control-allow-origin"]) == (204, ORIGIN)
        assert "access-control-allow-credentials" not in allowed.headers
        answer = door.ask("GET", "/v1/whoami", f"Origin: {ORIGIN}")
        assert answer.headers["access-control-allow-origin"] == ORIGIN
        for origin in ("https://app.example.evil.example", "http://app.example", "null"):
            refused = door.ask("OPTIONS", "/v1/memories", f"Origin: {origin}", *asked, key=None)
            assert refused.status == 400
            assert "access-control-allow-origin" not in door.ask("GET", "/v1/whoami", f"Origin: {origin}").headers


class TestRequestLine:
    @pytest.mark.parametrize(
        "path",
        [
            "//v1/whoami",
            "/v1//whoami",
            "/v1%2fwhoami",
            "/v1/%77hoami",
            "/%61dmin/v1/tenants",
            "/admin%2Fv1/tenants",
            "/v1/../v1/whoami",
            "/v1/./whoami",
            "/v1/%2e%2e/v1/whoami",
            "/v1/memories/..%2fwhoami",
            "/v1\\whoami",
            "/v1%5cwhoami",
            "/v1/whoami%00",
            "/v1/whoami%0a",
            "/v1/whoami%",
            "/v1/whoami%zz",
            "/v1/whoami;a=b",
            "/V1/whoami",
            "/v1/memories/%c0%ae",
            "/docs/assets/..%2fdocs.html",
            "/docs/assets/%2e%2e/docs.html",
            "/docs/assets//etc/passwd",
        ],
    )
    def test_a_path_is_spelt_in_one_way(self, door: Door, path: str) -> None:
        answer = door.ask("GET", path)
        assert answer.status == 404
        assert answer.problem["code"] == "not_found"

    def test_a_slash_at_the_end_and_a_full_address_change_nothing(self, door: Door) -> None:
        assert door.ask("GET", "/v1/whoami/").status == 200
        assert door.ask("GET", "http://other.example/v1/whoami").status == 200

    @pytest.mark.parametrize(
        ("query", "status"),
        [
            ("user_id=%ff", 400),
            ("user_id=%ed%a0%80", 400),
            ("x=" + "a" * 20_000, 400),
            ("&".join(["a=1"] * 30_000), 431),
            ("&".join(f"p{n}=1" for n in range(2_000)), 422),
            ("limit=1&limit=2", 422),
            ("user_id=a&user_id=b", 422),
            ("nothing=1", 422),
            ("user_id=%00", 422),
            ("limit=" + "9" * 5000, 422),
            ("limit=1e999", 422),
        ],
    )
    def test_a_query_has_a_size_and_says_each_thing_once(self, door: Door, query: str, status: int) -> None:
        answer = door.ask("GET", f"/v1/memories?{query}")
        assert answer.status == status
        assert len(answer.body) < 20_000

    @pytest.mark.parametrize("method", ["TRACE", "PUT", "BREW", "get", "CONNECT"])
    def test_a_route_takes_its_methods_alone(self, door: Door, method: str) -> None:
        assert door.ask(method, "/v1/whoami").status == 405

    def test_head_and_options_give_nothing_away(self, door: Door) -> None:
        assert door.ask("HEAD", "/v1/whoami").status == 405
        assert door.ask("OPTIONS", "/v1/whoami", key=None).status == 401
        assert door.ask("OPTIONS", "/v1/whoami").status == 204


class TestConnections:
    @pytest.mark.parametrize(
        "lines",
        [
            ["Content-Length: 4", "Content-Length: 5"],
            ["Content-Length: +4"],
            ["Content-Length : 4"],
            ["Transfer-Encoding: xchunked"],
            ["Transfer-Encoding: gzip, chunked"],
            ["Transfer-Encoding: chunked", "Transfer-Encoding: chunked"],
            [" folded: line"],
            ["X: a\x00b"],
        ],
    )
    def test_a_body_whose_end_is_in_doubt_is_refused(self, door: Door, lines: list[str]) -> None:
        body = b"4\r\nnull\r\n0\r\n\r\n"
        with door.wire() as wire:
            answer = wire.say(door.head("POST", "/v1/memories", *lines, json=True), body).hear()
        assert answer.status == 400

    def test_chunks_win_over_a_length_and_nothing_is_left_behind(self, door: Door) -> None:
        """What RFC 9112 section 6.3 asks for: the length is dropped and the connection closed."""
        smuggled = door.head("GET", "/v1/whoami")
        head = door.head("POST", "/v1/memories", "Transfer-Encoding: chunked", json=True, length=len(smuggled) + 5)
        with door.wire() as wire:
            answer = wire.say(head, "0\r\n\r\n", smuggled).hear()
            assert answer.status == 422
            assert wire.is_closed(within_s=10)

    def test_a_request_names_its_host(self, door: Door) -> None:
        with door.wire() as wire:
            answer = wire.say(f"GET /v1/whoami HTTP/1.1\r\nAuthorization: Bearer {door.tenant.key}\r\n\r\n").hear()
        assert (answer.status, answer.problem["errors"][0]["pointer"]) == (400, "Host")

    def test_the_protocol_is_http_1(self, door: Door) -> None:
        with door.wire() as wire:
            answer = wire.say("GET /healthz HTTP/1.0\r\n\r\n").hear()
            assert answer.status == 200
            assert wire.is_closed(within_s=10)
        for nonsense in (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", b"GET /healthz\r\n\r\n"):
            with door.wire() as wire:
                assert wire.say(nonsense).hear().status in (0, 400)
        upgrade = ["Upgrade: h2c", "Connection: Upgrade, HTTP2-Settings", "HTTP2-Settings: AAMAAABkAAQAAP__"]
        assert door.ask("GET", "/v1/whoami", *upgrade).status == 200
