<?php

namespace Acme\Money;

final class Amount
{
    public function __construct(private int $cents)
    {
    }

    public function plus(self $other): self
    {
        return new self($this->cents + $other->cents);
    }

    public function __toString(): string
    {
        return sprintf('%d.%02d', intdiv($this->cents, 100), abs($this->cents % 100));
    }
}
