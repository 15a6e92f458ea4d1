<?php

require __DIR__ . '/vendor/autoload.php';

use Acme\Money\Amount;
use App\Invoice;

function handle(Fre\Event $event, Fre\Context $context)
{
    $invoice = new Invoice();
    foreach (json_decode($event->body, true, 16, JSON_THROW_ON_ERROR) as [$text, $cents]) {
        $invoice->add($text, new Amount($cents));
    }
    return ['lines' => $invoice->count(), 'total' => (string) $invoice->total(), 'shown' => money($invoice->total())];
}
