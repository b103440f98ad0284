// Creates a container in Azurite. Usage: azurite.js ADDRESS CONTAINER KEY
// The signature: https://learn.microsoft.com/en-us/rest/api/storageservices/authorize-with-shared-key
const { createHmac } = require("crypto");
const [address, container, key] = process.argv.slice(2);
const account = "devstoreaccount1";
const headers = { "x-ms-date": new Date().toUTCString(), "x-ms-version": "2021-08-06" };
const signed = Object.entries(headers).map(([name, value]) => `${name}:${value}\n`).join("");
const text = `PUT${"\n".repeat(12)}${signed}/${account}/${account}/${container}\nrestype:container`;
const signature = createHmac("sha256", Buffer.from(key, "base64")).update(text, "utf8").digest("base64");
headers.authorization = `SharedKey ${account}:${signature}`;
fetch(`${address}/${account}/${container}?restype=container`, { method: "PUT", headers }).then(async answer => {
    if (!answer.ok) throw new Error(`${answer.status}: ${await answer.text()}`);
}).catch(error => {
    console.error(error);
    process.exit(1);
});
