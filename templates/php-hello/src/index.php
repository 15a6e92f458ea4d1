<?php

function handle(Fre\Event $event, Fre\Context $context)
{
    $name = $event->body !== '' ? $event->body : 'world';
    $context->logger->info('greeting %s', $name);
    return ['hello' => $name, 'function' => $context->function];
}
