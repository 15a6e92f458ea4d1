"""Imports what a function of some size does, about 28 MB of it, and answers its
monotonic clock, read in the handler's first line, and its memory in KiB."""

import asyncio
import concurrent.futures
import ctypes
import datetime
import decimal
import email.mime.multipart
import http.client
import http.cookiejar
import http.server
import json
import logging.handlers
import multiprocessing.pool
import resource
import sqlite3
import ssl
import statistics
import time
import urllib.request
import xml.dom.minidom
import xml.etree.ElementTree
import zipfile

import jinja2
import lxml.etree
import lxml.html
import yaml


def handle(event, context):
    clock = time.monotonic_ns()
    return f"{clock} {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}"
