module netarena/standin

go 1.22
