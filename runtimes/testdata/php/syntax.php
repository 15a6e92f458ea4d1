<?php

function handle($event, $context { }
