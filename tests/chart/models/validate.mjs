// Validates objects, one JSON document a line on standard input, by the models of their kinds. Exit code 1 where one fails.
import { readFileSync } from "node:fs";
import * as gateway from "@kubernetes-models/gateway-api/gateway.networking.k8s.io/v1";
import * as keda from "@kubernetes-models/keda/keda.sh/v1alpha1";
import * as prometheus from "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1";

const models = {
  "keda.sh/v1alpha1": keda,
  "gateway.networking.k8s.io/v1": gateway,
  "monitoring.coreos.com/v1": prometheus,
};
const lines = readFileSync(0, "utf8").split("\n").filter(Boolean);
let failed = 0;
for (const line of lines) {
  const object = JSON.parse(line);
  const name = `${object.kind} ${object.metadata.name}`;
  const Model = (models[object.apiVersion] || {})[object.kind];
  try {
    if (!Model) throw new Error(`there is no model of ${object.apiVersion} ${object.kind}`);
    new Model(object).validate();
  } catch (error) {
    failed += 1;
    console.log(`${name}: ${error.message}`);
  }
}
console.log(`${lines.length - failed} of ${lines.length} objects are valid`);
process.exit(failed ? 1 : 0);
