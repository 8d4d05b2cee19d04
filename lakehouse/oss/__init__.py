"""Alibaba Cloud OSS: one set of catalog options for every client, and commits only where the store can decide them."""

from __future__ import annotations

from lakehouse.oss.settings import OssSettings, refusal

__all__ = ["OssSettings", "refusal"]
