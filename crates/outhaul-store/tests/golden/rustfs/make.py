#!/usr/bin/env python3
"""Makes the queue directories beside it, byte for byte in the format of RustFS.

Needs nothing but Python: `python3 make.py` writes them anew, always the same.
"""

import json
import pathlib
import shutil
import struct

HERE = pathlib.Path(__file__).parent
QUEUE = HERE / "rustfs-webhook-primary"
AUDIT = HERE / "rustfs-kafka-audit"


def varint(number):
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def snappy(data):
    """One raw Snappy block, with copies wherever four bytes were seen before."""
    out, seen, start, at = bytearray(varint(len(data))), {}, 0, 0

    def literal(end):
        for begin in range(start, end, 60):
            part = data[begin : min(begin + 60, end)]
            out.append(len(part) - 1 << 2)
            out.extend(part)

    while at + 4 <= len(data):
        key = data[at : at + 4]
        found = seen.get(key)
        seen[key] = at
        if found is None or at - found > 0xFFFF:
            at += 1
            continue
        length = 4
        while length < 64 and at + length < len(data) and data[found + length] == data[at + length]:
            length += 1
        literal(at)
        out.append(length - 1 << 2 | 2)
        out.extend(struct.pack("<H", at - found))
        at += length
        start = at
    literal(len(data))
    return bytes(out)


def record(bucket, key, name):
    return {
        "eventVersion": "2.1",
        "eventSource": "rustfs:s3",
        "awsRegion": "eu-1",
        "eventTime": "2026-08-23T10:00:00.123Z",
        "eventName": name,
        "userIdentity": {"principalId": "alice"},
        "requestParameters": {"sourceIPAddress": "10.0.0.1"},
        "responseElements": {"x-amz-request-id": "1"},
        "s3": {
            "s3SchemaVersion": "1.0",
            "configurationId": "c",
            "bucket": {"name": bucket, "ownerIdentity": {"principalId": "alice"}, "arn": "arn:aws:s3:::" + bucket},
            "object": {"key": key, "size": 7, "eTag": "e", "contentType": "text/plain", "sequencer": "1"},
        },
        "source": {"host": "10.0.0.1", "port": "", "userAgent": "mc"},
    }


def compact(value):
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def notification(bucket, encoded, decoded, name="s3:ObjectCreated:Put"):
    return compact({"EventName": name, "Key": f"{bucket}/{decoded}", "Records": [record(bucket, encoded, name)]})


def entry(bucket, encoded, body, name="s3:ObjectCreated:Put", **more):
    meta = {
        "event_name": name,
        "bucket_name": bucket,
        "object_name": encoded,
        "content_type": "application/json",
        "queued_at_unix_ms": 1700000000000,
        "payload_len": len(body),
        **more,
    }
    meta = compact(meta)
    return b"RQP1" + struct.pack("<I", len(meta)) + meta + body


def uuid(last):
    return f"01890a5d-ac96-774b-bcce-b302099a80{last:02x}"


def main():
    for directory in (QUEUE, AUDIT):
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
    (QUEUE / "failed").mkdir()

    example = b'{"EventName":"s3:ObjectCreated:Put","Key":"b/k","Records":[]}'
    plain = entry("b", "k", example)
    assert len(plain) == 227 and snappy(plain)[:2] == b"\xe3\x01"
    (QUEUE / f"{uuid(1)}.event").write_bytes(plain)
    spaced = entry("photos", "2026%2FGr%C3%B6%C3%9Fe+1.jpg", notification("photos", "2026%2FGr%C3%B6%C3%9Fe+1.jpg", "2026/Größe 1.jpg"))
    (QUEUE / f"{uuid(2)}.event.snappy").write_bytes(snappy(spaced))
    removed = "s3:ObjectRemoved:Delete"
    kept = entry("photos", "old.jpg", notification("photos", "old.jpg", "old.jpg", removed), removed, dedup_id="7b0a3b6e-1f6f-4c65-9d7e-2f8d6f3f0c11")
    (QUEUE / f"{uuid(3)}.event").write_bytes(kept)
    batch = [notification("photos", f"{n}.jpg", f"{n}.jpg") for n in range(3)]
    (QUEUE / f"3_{uuid(4)}.event.snappy").write_bytes(snappy(b"".join(batch)))
    (QUEUE / f"2:{uuid(5)}.event").write_bytes(b"".join(batch[:2]))
    # What a crash and other people leave.
    (QUEUE / f"{uuid(6)}.event.tmp").write_bytes(plain[:100])
    (QUEUE / f"{uuid(7)}.event").write_bytes(plain[:100])
    (QUEUE / f"4_{uuid(8)}.event").write_bytes(b"".join(batch))
    (QUEUE / "README").write_bytes(b"not an entry\n")
    failure = {
        "error_class": "Terminal",
        "error_detail": "stream not found",
        "nats_msg_id": "7b0a3b6e-1f6f-4c65-9d7e-2f8d6f3f0c12",
        "failed_at_unix_ms": 1700000005000,
        "retry_count": 5,
    }
    failed = entry("photos", "bad.jpg", notification("photos", "bad.jpg", "bad.jpg"), dedup_id=failure["nats_msg_id"], failure=failure)
    (QUEUE / "failed" / uuid(9)).write_bytes(failed)

    audit = compact({"version": "1", "deploymentid": "d", "time": "2026-08-23T10:00:00Z", "event": "s3:GetObject", "api": {"name": "GetObject", "bucket": "b", "object": "k"}})
    (AUDIT / f"{uuid(1)}.audit").write_bytes(entry("b", "k", audit, "s3:ObjectAccessed:Get"))


main()
