<?php

namespace App;

use Acme\Money\Amount;

final class Invoice implements \Countable
{
    /** @var array<array{string, Amount}> */
    private array $lines = [];

    public function add(string $text, Amount $amount): void
    {
        $this->lines[] = [$text, $amount];
    }

    public function total(): Amount
    {
        return array_reduce($this->lines, fn (Amount $sum, array $line) => $sum->plus($line[1]), new Amount(0));
    }

    public function count(): int
    {
        return count($this->lines);
    }
}
