module holdfast-bench

go 1.19

require holdfast v0.0.0

replace holdfast => ../../../bindings/go
