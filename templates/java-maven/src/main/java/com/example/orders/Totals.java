package com.example.orders;

import com.fasterxml.jackson.databind.DeserializationFeature;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.io.InputStream;
import java.math.BigDecimal;
import java.util.Properties;

public class Totals {
    private static final ObjectMapper JSON = new ObjectMapper().enable(DeserializationFeature.USE_BIG_DECIMAL_FOR_FLOATS);
    private final String currency;

    public Totals() throws IOException {
        Properties settings = new Properties();
        try (InputStream in = Totals.class.getResourceAsStream("/orders.properties")) {
            settings.load(in);
        }
        currency = settings.getProperty("currency");
    }

    public fre.Response handle(InputStream event) throws IOException {
        Order order = JSON.readValue(event, Order.class);
        BigDecimal total = order.items().stream()
            .map(item -> item.price().multiply(BigDecimal.valueOf(item.count())))
            .reduce(BigDecimal.ZERO, BigDecimal::add);
        byte[] answer = JSON.writeValueAsBytes(new Total(order.customer(), total, currency));
        return new fre.Response(200, answer).header("Content-Type", "application/json");
    }
}
