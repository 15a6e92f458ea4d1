<?php

function handle(Fre\Event $event, Fre\Context $context)
{
    $context->logger->info('called with %d bytes', strlen($event->body));
    return ['hello' => 'world', 'path' => $event->path];
}
