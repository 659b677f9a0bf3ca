"""Events of the stand-in."""

import torch


class EventHandle:
    def __init__(self, stream=None):
        self.event = torch.cuda.Event()
        self.event.record(stream or torch.cuda.current_stream())


class EventOverlap:
    def __init__(self, event=None):
        self.event = event

    def current_stream_wait(self):
        torch.cuda.current_stream().wait_event(self.event.event)
