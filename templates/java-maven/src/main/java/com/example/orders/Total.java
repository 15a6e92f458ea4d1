package com.example.orders;

import java.math.BigDecimal;

record Total(String customer, BigDecimal total, String currency) {}
