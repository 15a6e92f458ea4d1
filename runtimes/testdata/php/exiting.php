<?php

exit("not today\n");
