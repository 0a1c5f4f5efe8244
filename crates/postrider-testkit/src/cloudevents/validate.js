// Messages as lines of JSON on the standard input, { sink, headers, body }; for each the CloudEvent that it is, as a line of JSON.
// The first one that is none ends it, with the reason. Run with NODE_PATH set to where the package `cloudevents` is.
"use strict";
const readline = require("readline");
const { CloudEvent, HTTP, Kafka } = require("cloudevents");

const STRICT = true;

function read({ sink, headers, body }) {
  const named = Object.fromEntries(Object.entries(headers).map(([name, value]) => [name.toLowerCase(), value]));
  const isStructured = (named["content-type"] ?? "").startsWith("application/cloudevents");
  switch (sink) {
    // NATS has HTTP's rules for names and values.
    case "nats": {
      const decoded = Object.entries(named).map(([name, value]) => [name, name.startsWith("ce-") ? decodeURIComponent(value) : value]);
      const wanted = decoded.filter(([name]) => name === "content-type" || (name.startsWith("ce-") && name !== "ce-datacontenttype"));
      if (!isStructured && named["ce-datacontenttype"] !== named["content-type"]) throw new Error("no ce-datacontenttype");
      return HTTP.toEvent({ headers: Object.fromEntries(wanted), body });
    }
    // Redis has Kafka's.
    case "kafka":
    case "redis":
      return Kafka.toEvent({ headers: named, body, value: body, key: named["ce_partitionkey"] ?? null, timestamp: 0 });
    // The package knows nothing of AMQP.
    case "rabbitmq": {
      if (isStructured) return HTTP.toEvent({ headers: named, body });
      const attributes = Object.entries(headers).filter(([name]) => name.startsWith("cloudEvents_"));
      const event = Object.fromEntries(attributes.map(([name, value]) => [name.slice("cloudEvents_".length), value]));
      return new CloudEvent({ ...event, datacontenttype: named["content-type"], data: JSON.parse(body) }, STRICT);
    }
    default:
      throw new Error(`nothing is known of ${sink}`);
  }
}

readline.createInterface({ input: process.stdin }).on("line", (line) => {
  const found = read(JSON.parse(line)).toJSON();
  const event = new CloudEvent(found, STRICT);
  event.validate();
  console.log(JSON.stringify(event));
});
