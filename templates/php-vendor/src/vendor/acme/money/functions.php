<?php

function money(Acme\Money\Amount $amount): string
{
    return "EUR $amount";
}
